"""A headless Chromium, driven through the pipe of its DevTools protocol."""

import fcntl
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str | None:
    """Return the path of a Chromium, None if the machine has none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in one browser; everything that the page complains about is kept in `errors`."""

    def __init__(self, program: str) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.loads = 0
        self.numbers = itertools.count(1)
        self.profile = tempfile.mkdtemp()
        # The browser reads commands from descriptor 3 and answers on 4; with numbers from 10 on,
        # the ends that it gets cannot be in the way.
        low_read, self.to = os.pipe()
        self.back, low_write = os.pipe()
        to_read, to_write = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (low_read, low_write))
        flags = f"--headless=new --no-sandbox --disable-gpu --user-data-dir={self.profile}"
        script = f'exec "$0" {flags} --remote-debugging-pipe 3<&{to_read} 4>&{to_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, program],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (low_read, low_write, to_read, to_write):
            os.close(end)
        self.unread = b""
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.terminate()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = next(self.numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.unread:
            more = os.read(self.back, 1 << 20)
            assert more, "the browser has gone"
            self.unread += more
        text, self.unread = self.unread.split(b"\0", 1)
        event: dict[str, Any] = json.loads(text)
        about, method = event.get("params", {}), event.get("method")
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(about["exceptionDetails"]))
        elif method == "Log.entryAdded" or (
            method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning")
        ):
            self.errors.append(str(about))
        elif method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loads += 1
        return event

    def open(self, page: Path, width: int = 1280, dark: bool = False) -> None:
        """Open a file at a width and wait until it has loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        before = self.loads
        self.call("Page.navigate", url=page.as_uri())
        while self.loads == before:
            self._read()

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")
