/** Starts the graph host: `node … main.mjs --socket FD`, in the folder of the project's configuration. */

import { parseArgs } from "node:util";

import { Host } from "./host.mjs";
import { parseDocument } from "./json.mjs";
import { configure } from "./masking.mjs";

const CONFIG_VARIABLE = "GRAPH_HOST_CONFIG";

const { values } = parseArgs({ options: { socket: { type: "string" } }, strict: false });
const config = parseDocument(/** @type {string} */ (process.env[CONFIG_VARIABLE]));
delete process.env[CONFIG_VARIABLE];
configure((config.secrets ?? []).map((name) => process.env[name]).filter(Boolean));
process.argv.splice(2);

await new Host(Number(values.socket), config).serve();
