<?php
/*
 * Plugin Name: Tasks for taskserver
 * Description: Adds tasks to the queue of taskserver, here one for each new comment.
 *
 * Copy it into wp-content/plugins and activate it, or into wp-content/mu-plugins. The queue's table lies in WordPress'
 * own database and has no prefix of WordPress.
 */
defined( 'ABSPATH' ) || exit;

/**
 * Adds a task, and returns its id, or 0 if it could not be added: then the reason is in PHP's error log.
 */
function taskserver_add_task( $task, $args = array(), $group_id = 0, $priority = 0, $delay_seconds = 0 ) {
	global $wpdb;

	$json = wp_json_encode( $args, JSON_PRESERVE_ZERO_FRACTION );
	if ( false === $json ) {
		error_log( "taskserver: the arguments of $task cannot be written as JSON" );
		return 0;
	}
	if ( $delay_seconds > 0 ) {
		// By the database's clock, and not as NOW() + INTERVAL: that fails when the clocks go forward.
		$added = $wpdb->query(
			$wpdb->prepare(
				'INSERT INTO jobs_queue (task, args, group_id, priority, status, due_at)
				 VALUES (%s, %s, %d, %d, 5, FROM_UNIXTIME(UNIX_TIMESTAMP() + %d))',
				$task, $json, $group_id, $priority, $delay_seconds
			)
		);
	} else {
		$added = $wpdb->insert(
			'jobs_queue',
			array( 'task' => $task, 'args' => $json, 'group_id' => $group_id, 'priority' => $priority ),
			array( '%s', '%s', '%d', '%d' )
		);
	}
	if ( ! $added ) {
		error_log( "taskserver: $task was not added: {$wpdb->last_error}" );
		return 0;
	}
	return $wpdb->insert_id;
}

// Give a task the id of what it is about, and little else: it can look up the rest, as it is by then.
add_action(
	'comment_post',
	function ( $comment_id ) {
		taskserver_add_task(
			'tasks.check_comment',
			array( 'comment' => (int) $comment_id, 'author' => get_comment_author( $comment_id ) ),
			3
		);
	}
);
