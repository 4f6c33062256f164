"""An agent of the Agent Client Protocol that remembers nothing on disk. Runs in the jail: standard library only.

What it is told to do is the text of the prompt: `say TEXT`, `ask` (for permission), `read PATH` (through the editor),
`wait FILE` (until it is there), `who` (its process id), `end STATUS`.
"""

import json
import os
import sys
import threading
import time

answers: dict[int, dict[str, object]] = {}
arrived = threading.Condition()
numbers = iter(range(900, 10**9))
session = "s1"


def tell(**message: object) -> None:
    line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
    with arrived:
        sys.stdout.write(line)
        sys.stdout.flush()


def say(text: str) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    tell(method="session/update", params={"sessionId": session, "update": update})


def ask(method: str, **params: object) -> dict[str, object]:
    number = next(numbers)
    tell(id=number, method=method, params={"sessionId": session, **params})
    with arrived:
        arrived.wait_for(lambda: number in answers)
        return answers.pop(number)


def work(number: object, text: str) -> None:
    order, _, rest = text.partition(" ")
    if order == "say":
        say(rest)
    elif order == "ask":
        options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
        call = {"toolCallId": "t", "title": "something"}
        say("chosen: " + json.dumps(ask("session/request_permission", toolCall=call, options=options).get("result")))
    elif order == "read":
        say("read: " + json.dumps(ask("fs/read_text_file", path=rest), sort_keys=True))
    elif order == "wait":
        say("waiting")
        while not os.path.exists(rest):
            time.sleep(0.02)
        say("woke")
    elif order == "who":
        say(str(os.stat("/proc/self").st_ino) + " " + str(started))
    elif order == "end":
        os._exit(int(rest))
    tell(id=number, result={"stopReason": "end_turn"})


def obey(message: dict[str, object]) -> None:
    method, number, params = message.get("method"), message.get("id"), message.get("params")
    if method is None:
        with arrived:
            answers[int(str(number))] = message
            arrived.notify_all()
    elif method == "initialize":
        tell(id=number, result={"protocolVersion": 1, "agentCapabilities": {"loadSession": False}})
    elif method == "session/new":
        tell(id=number, result={"sessionId": session})
    elif method == "session/prompt" and isinstance(params, dict):
        threading.Thread(target=work, args=(number, params["prompt"][0]["text"]), daemon=True).start()
    elif number is not None:
        tell(id=number, error={"code": -32601, "message": f"no {method}"})


started = time.time()
for line in sys.stdin:
    obey(json.loads(line))
