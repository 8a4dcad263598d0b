"""Textual's driver for a viewer of ``fleetsim dashboard --serve``, which ends with its server."""

from __future__ import annotations

import os
import signal

from textual.drivers.web_driver import WebDriver


class BrowserDriver(WebDriver):
    """Ends the process when the server's pipe ends: a server that was killed cannot end it."""

    def run_input_thread(self) -> None:
        super().run_input_thread()
        if not self.exit_event.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
