/** An authorization, and graphs that call their own deployment. */

import { Annotation, START, StateGraph, type LangGraphRunnableConfig } from "@langchain/langgraph";
import { Client } from "@langchain/langgraph-sdk";
import { Auth, HTTPException } from "@langchain/langgraph-sdk/auth";

export const auth = new Auth()
  .authenticate(async (request: Request) => {
    const token = request.headers.get("authorization");
    switch (token) {
      case "ann":
        return { identity: "ann", permissions: ["read"], role: request.method };
      case "text":
        return "text" as any;
      case "reads":
        return { identity: await request.text(), permissions: [] };
      case "breaks":
        throw new TypeError("broken");
      case "nobody":
        return {} as any;
      default:
        throw new HTTPException(401, { message: "no token", headers: { "www-authenticate": "Bearer" } });
    }
  })
  .on("*", () => false)
  .on("threads", ({ user }) => ({ owner: user.identity }))
  .on("threads:create", ({ value, user }) => {
    (value as any).metadata = { ...(value as any).metadata, owner: user.identity };
    return { owner: user.identity };
  })
  .on("threads:delete", () => {
    throw new HTTPException(409, { message: "kept" });
  })
  .on("store", () => ({ owner: "x" }) as any)
  .on("assistants:read", () => ({ size: NaN }) as any);
export const no_auth = {};

const client = new Client();
const State = Annotation.Root({ seen: Annotation<unknown> });

async function ask() {
  const thread = await client.threads.get("a b/c");
  return { seen: thread };
}
export const asks = new StateGraph(State).addNode("ask", ask).addEdge(START, "ask").compile();

async function stream(_: unknown, config: LangGraphRunnableConfig) {
  const seen: unknown[] = [];
  for await (const part of client.runs.stream(null, "agent", { input: {} })) {
    config.writer?.(part.event);
    seen.push(part.data);
  }
  return { seen };
}
export const streams = new StateGraph(State).addNode("stream", stream).addEdge(START, "stream").compile();

let aborted = 0;

/** An app with the list of routes that Hono keeps. */
export const app = {
  routes: [
    { method: "GET", path: "/words/:id{[0-9]+}" },
    { method: "POST", path: "/echo" },
    { method: "ALL", path: "/*", handler: function guard() {} },
  ],
  async fetch(request: Request): Promise<Response> {
    const { pathname, search } = new URL(request.url);
    switch (pathname) {
      case "/echo":
        return new Response(await request.text(), { status: 201, headers: { "x-search": search } });
      case "/endless":
        request.signal.addEventListener("abort", () => aborted++);
        return new Response(new ReadableStream({
          async pull(controller) {
            controller.enqueue(new TextEncoder().encode("x".repeat(100_000)));
          },
        }));
      case "/aborted":
        return Response.json({ aborted, host: request.headers.get("host") });
      default:
        throw new TypeError("no such page");
    }
  },
};
