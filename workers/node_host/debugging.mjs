/** The port at which a debugger attaches to this process, of `runyard dev --debug-port`. */

import inspector from "node:inspector";
import { createServer } from "node:net";

const { setTimeout } = globalThis;

const ADDRESS = "127.0.0.1";
const RETRY_MS = 500;

/**
 * Open the port as soon as it is free: the host of an earlier revision may still have it.
 *
 * @param {{port: number, waits: boolean}} debug `waits` blocks this thread until a debugger has attached
 */
export async function openInspector({ port, waits }) {
  if (!(await isFree(port))) {
    if (!waits) {
      setTimeout(() => openInspector({ port, waits }), RETRY_MS).unref();
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    await openInspector({ port, waits });
    return;
  }
  inspector.open(port, ADDRESS);
  if (waits) {
    inspector.waitForDebugger();
  }
}

function isFree(port) {
  return new Promise((resolve) => {
    const server = createServer();
    server.once("error", () => resolve(false));
    server.listen(port, ADDRESS, () => server.close(() => resolve(true)));
  });
}
