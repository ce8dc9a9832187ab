"""The commands that a shell script calls, without the seconds that each would take to import torch and fairseq.

:func:`forked_commands` starts one process that imports them once, and puts commands on the PATH that make it fork: each
command runs for real, in a process of its own.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMANDS = ("fairseq-train", "fairseq-generate", "fairseq-validate", "fairseq-grounding", "python")

CLIENT = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], os.getcwd(), dict(os.environ)])
socket.send_fds(server, [request.encode()], [0, 1, 2])
sys.exit(int(server.recv(16) or b"1"))
"""


@contextmanager
def forked_commands(folder: Path) -> Iterator[dict[str, str]]:
    """Yield an environment in which a script's commands are forked; *folder* is for their files, and short."""
    address = folder / "s"
    for command in COMMANDS:
        path = folder / command
        path.write_text(CLIENT.format(python=sys.executable, address=str(address)))
        path.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.forked", str(address)],
        cwd=Path(__file__).resolve().parents[1],
        stdout=subprocess.PIPE,
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        finally:
            server.terminate()


def serve(address: str) -> None:
    """Fork for each command that comes."""
    import fairseq_cli.generate
    import fairseq_cli.train
    import fairseq_cli.validate
    import torch._dynamo  # noqa: F401 (torch's optimizers import it late)

    import fairseq_grounding.cli

    run = {
        "fairseq-train": fairseq_cli.train.cli_main,
        "fairseq-generate": fairseq_cli.generate.cli_main,
        "fairseq-validate": fairseq_cli.validate.cli_main,
        "fairseq-grounding": fairseq_grounding.cli.main,
        "python": run_script,
    }
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    print("ready", flush=True)
    # nobody waits for the commands here
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            message, files, _, _ = socket.recv_fds(client, 1 << 20, 3)
            for number, file in enumerate(files):
                os.dup2(file, number)
            name, arguments, folder, environment = json.loads(message)
            os.chdir(folder)
            os.environ.update(environment)
            sys.argv = [name, *arguments]
            code = code_of(run[name])
            client.send(str(code).encode())
            os._exit(code)
        client.close()


def code_of(command) -> int:
    """Run it, as a process of its own would end."""
    try:
        code = command()
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def run_script() -> None:
    """What ``python SCRIPT ARGUMENTS`` does."""
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
