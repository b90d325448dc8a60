import { HttpAgent } from "@ag-ui/client";
import { LangGraphAgent } from "@copilotkit/runtime/langgraph";
import { CopilotRuntime } from "@copilotkit/runtime/v2";
import { createCopilotNodeListener } from "@copilotkit/runtime/v2/node";
import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin, type PreviewServer, type ViteDevServer } from "vite";

const { DEPLOYMENT_URL = "http://127.0.0.1:8123/d/copilotkit", RUNYARD_API_KEY = "", AGENT = "ag-ui" } = process.env;

// The runtime of CopilotKit stands between the page and the deployment. It has the API key, which never reaches a
// browser. In production it runs in a server of its own: it has handlers for Node, Express and Hono.
// AGENT=langgraph chooses CopilotKit's adapter, which calls the LangGraph API instead of AG-UI.
const agent =
  AGENT === "langgraph"
    ? new LangGraphAgent({ deploymentUrl: DEPLOYMENT_URL, graphId: "copilotkit", langsmithApiKey: RUNYARD_API_KEY })
    : new HttpAgent({ url: `${DEPLOYMENT_URL}/ag-ui/copilotkit`, headers: { "X-Api-Key": RUNYARD_API_KEY } });
const listener = createCopilotNodeListener({
  runtime: new CopilotRuntime({ agents: { default: agent } }),
  basePath: "/api/copilotkit",
});

function serve(server: ViteDevServer | PreviewServer) {
  server.middlewares.use((request, response, next) =>
    request.url?.startsWith("/api/copilotkit") ? listener(request, response) : next(),
  );
}

const runtime: Plugin = { name: "copilot-runtime", configureServer: serve, configurePreviewServer: serve };

export default defineConfig({ plugins: [react(), runtime] });
