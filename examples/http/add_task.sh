#!/bin/sh
# Adds a task over HTTP: see docs/page.md. add_task.sh TASK ARGS_JSON [GROUP] [KEY] prints the answer.
#
#     ./add_task.sh tasks.send_letter '{"to": "a@example.org"}' 3 letter-17
set -eu

url=https://your-site.example/queue/tasks
token=the-token

# Other users of the host see a command's arguments: the token goes by standard input.
curl --silent --show-error --fail-with-body --max-time 10 --config - \
    --header "Content-Type: application/json" ${4:+--header "Idempotency-Key: $4"} \
    --data "{\"task\": \"$1\", \"args\": $2, \"group_id\": ${3:-0}}" "$url" <<END
header = "X-Taskserver-Token: $token"
END
