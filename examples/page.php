<?php
/*
 * A page that takes an order: its own row and the task are committed together, or neither is. The visitor gets an answer
 * at once, and the work is done later. Errors go to the site's error log, not to the page.
 */
require '/home/you/enqueue.php';

$customer = $_POST['customer'] ?? '';
if (!is_string($customer)) { // a visitor may send a list
    http_response_code(400);
    exit('Please send a form with the field `customer`.');
}

try {
    $pdo = new PDO('mysql:host=localhost;dbname=you_site;charset=utf8mb4', 'you_web', 'web-password');
    $pdo->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);

    $pdo->beginTransaction(); // what is not committed when the page ends is rolled back
    $pdo->prepare('INSERT INTO orders (customer) VALUES (?)')->execute([$customer]);
    $order = (int) $pdo->lastInsertId();
    add_task_by_pdo($pdo, 'tasks.confirm_order', ['order' => $order, 'customer' => $customer], 3);
    $pdo->commit();
} catch (Throwable $error) {
    error_log('order: ' . $error->getMessage()); // its whole text could hold the password
    http_response_code(500);
    exit('Something went wrong. Please try again later.');
}

http_response_code(202);
echo "Thank you! Your order has the number $order.";
