// Gives the keys to the terminal once the dashboard is drawn; textual.js waits for a click.
new MutationObserver((_, observer) => {
  if (document.body.classList.contains("-first-byte")) {
    observer.disconnect();
    document.querySelector(".xterm-helper-textarea").focus();
  }
}).observe(document.body, { attributes: true, attributeFilter: ["class"] });
