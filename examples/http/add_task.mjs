// Adds a task over HTTP from a server in JavaScript (Node 18 or newer): see docs/page.md. Never in a page's own script:
// anyone who sees the token can add tasks.
//
//     import { addTask } from "./add_task.mjs";
//     const ids = await addTask("tasks.send_letter", { to: "a@example.org" }, { groupId: 3, key: `letter-${orderId}` });

const URL = "https://your-site.example/queue/tasks";
const TOKEN = "the-token";

/** The ids of the task; an error says why it was not added. The same key adds once, however often it is sent. */
export async function addTask(task, args, { groupId = 0, key } = {}) {
  const headers = { "X-Taskserver-Token": TOKEN, "Content-Type": "application/json" };
  if (key !== undefined) {
    headers["Idempotency-Key"] = key;
  }
  const answer = await fetch(URL, {
    method: "POST",
    headers,
    body: JSON.stringify({ task, args, group_id: groupId }),
    signal: AbortSignal.timeout(10_000),
  });
  if (answer.status !== 201) {
    // With a key, it may be sent again at 429 and 503, and where no answer came.
    throw new Error(`no task was added: ${answer.status} ${await answer.text()}`);
  }
  return (await answer.json()).ids;
}
