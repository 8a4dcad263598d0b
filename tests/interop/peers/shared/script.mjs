// What every peer server does and every peer client expects, read from script.json.
import { appendFileSync, readFileSync } from "node:fs";

export const SCRIPT = JSON.parse(readFileSync(new URL("./script.json", import.meta.url), "utf8"));
SCRIPT.slow_s = Number(process.env.INTEROP_SLOW_S ?? SCRIPT.slow_s);
export const FULL_TEXT = SCRIPT.chunks.join("");
export const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

/** The skill a message asks for: its first word. */
export function skillOf(text) {
  return text.trim().split(/\s+/)[0].toLowerCase() || "complete";
}

/** Note one execution in the file that INTEROP_EXECUTIONS names, if it does: whoever asked can count them. */
export function executed(text) {
  if (process.env.INTEROP_EXECUTIONS) appendFileSync(process.env.INTEROP_EXECUTIONS, text + "\n");
}

/** Leave when standard input closes. */
export function leaveWithParent(server) {
  process.stdin.resume();
  process.stdin.on("end", () => {
    server.close();
    server.closeAllConnections?.();
    setTimeout(() => process.exit(0), 100);
  });
}

/** Bind a free loopback port; `build(url)` returns the request handler. */
export function serve(http, build) {
  const server = http.createServer();
  server.listen(0, "127.0.0.1", () => {
    const url = `http://127.0.0.1:${server.address().port}`;
    server.on("request", build(url));
    process.stdout.write(JSON.stringify({ url }) + "\n");
  });
  leaveWithParent(server);
}
