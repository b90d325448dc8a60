import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const { DEPLOYMENT_URL = "http://127.0.0.1:8123/d/react", RUNYARD_API_KEY = "" } = process.env;

// The page calls /agent at its own address. Vite passes these requests on to the deployment and adds the API key, so
// that the key never reaches a browser.
const { origin, pathname } = new URL(DEPLOYMENT_URL);
const proxy = {
  "/agent": {
    target: origin,
    changeOrigin: true,
    headers: { "X-Api-Key": RUNYARD_API_KEY },
    rewrite: (path: string) => path.replace("/agent", pathname.replace(/\/$/, "")),
  },
};

export default defineConfig({ plugins: [react()], server: { proxy }, preview: { proxy } });
