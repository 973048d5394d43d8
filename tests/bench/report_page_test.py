"""report_page_test.py PAGE.html [SCREENSHOT_DIRECTORY]: a report in headless Chromium, on a telephone and on a large screen, light
and dark: no console errors, no requests, a caption under every figure, and text that fits. Skipped where Chromium is missing."""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
WIDTHS = (400, 1400)

# Runs in the page; a list of what is wrong.
PROBLEMS = r"""(() => {
  const problems = [], say = (what, element) => problems.push(what + ': ' + (element.textContent || '').trim().slice(0, 60));
  const page = document.documentElement;
  if (page.scrollWidth > innerWidth) problems.push(`the page is ${page.scrollWidth} px wide on a screen of ${innerWidth}`);
  for (const element of document.querySelectorAll('h1,h2,p,td,th,code,figcaption')) {
    const box = element.getBoundingClientRect();
    if (box.width === 0) continue;
    if (element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0) say('text leaves its box', element);
    if (box.left < -0.5 || box.right > innerWidth + 0.5) say('outside of the screen', element);
    const letters = element.textContent.trim().length;
    if (letters > 3 && box.width < 36) say('squeezed to ' + box.width.toFixed(0) + ' px', element);
  }
  for (const figure of document.querySelectorAll('figure')) {
    const caption = figure.querySelector('figcaption');
    if (!caption || !caption.textContent.trim()) say('a figure without a caption', figure);
    const svg = figure.querySelector('svg'), frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].map(text => [text, text.getBoundingClientRect()]);
    for (const [text, box] of texts) {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        say('text leaves its figure', text);
      const size = parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a;
      if (size < 9) say('text of ' + size.toFixed(1) + ' px', text);
      for (const [other, its] of texts)
        if (other !== text && box.left < its.right - 1 && its.left < box.right - 1 && box.top < its.bottom - 2 && its.top < box.bottom - 2)
          say('overlaps "' + other.textContent + '"', text);
    }
  }
  return JSON.stringify(problems);
})()"""


class Browser:
    """Chromium, driven over a pair of pipes by the DevTools protocol."""

    def __init__(self, program, profile):
        to_browser, self.commands = os.pipe()
        self.answers, from_browser = os.pipe()

        def wire():
            # Above 4 first: one of the pipes may already be 3 or 4.
            read, write = os.dup(to_browser), os.dup(from_browser)
            os.dup2(read, 30), os.dup2(write, 31)
            os.dup2(30, 3), os.dup2(31, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars",
             f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            close_fds=False, preexec_fn=wire, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser), os.close(from_browser)
        self.rest, self.last, self.events, self.session = b"", 0, [], None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def read(self):
        while b"\0" not in self.rest:
            got = os.read(self.answers, 1 << 16)
            if not got:
                raise RuntimeError(f"Chromium ended with {self.process.wait()}")
            self.rest += got
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, address):
        self.events = []
        self.call("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.read())

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"]["value"]

    def close(self):
        self.session = None
        self.call("Browser.close")
        self.process.wait(30)
        os.close(self.commands), os.close(self.answers)


def program():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def problems_of(page, screenshots=None):
    """What is wrong with a page, a line each."""
    address = pathlib.Path(page).resolve().as_uri()
    problems = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program(), profile)
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
                browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
                browser.open(address)
                found = json.loads(browser.evaluate(PROBLEMS))
                for event in browser.events:
                    parameters = event.get("params", {})
                    if event["method"] == "Network.requestWillBeSent" and parameters["request"]["url"] != address:
                        found.append("a request: " + parameters["request"]["url"][:200])
                    if event["method"] == "Runtime.exceptionThrown" or \
                            event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning") or \
                            event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                        found.append("console: " + json.dumps(parameters)[:300])
                problems += [f"{width} px, {scheme}: {problem}" for problem in found]
                if screenshots:
                    image = browser.call("Page.captureScreenshot", captureBeyondViewport=True)
                    (pathlib.Path(screenshots) / f"{width}-{scheme}.png").write_bytes(base64.b64decode(image["data"]))
        browser.close()
    return problems


if __name__ == "__main__":
    if not program():
        print("skipped: no chromium here (apt-get install chromium)")
        sys.exit(SKIPPED)
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    wrong = problems_of(*sys.argv[1:])
    print("\n".join(wrong) if wrong else f"{sys.argv[1]}: nothing wrong at {WIDTHS} px")
    sys.exit(1 if wrong else 0)
