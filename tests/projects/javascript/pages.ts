/** Apps of Hono: with plain routes, and with routes that describe themselves. */

import { OpenAPIHono, createRoute, z } from "@hono/zod-openapi";
import { Hono } from "hono";
import { cors } from "hono/cors";
import { logger } from "hono/logger";
import { mount } from "hono/mount";

export const words = new Hono().get("/:id{[0-9]+}", (context) => context.json({ id: context.req.param("id") }));

export const app = new Hono()
  .route("/words", words)
  .use("/private/*", logger())
  .get("/private/page", (context) => context.text(`${context.req.url} ${context.req.header("x-forwarded-prefix")}`))
  .post("/private/page", (context) => context.text("", 201))
  .all("/files/*", (context) => context.text(context.req.path))
  .mount("/mounted", () => new Response("mounted"))
  .all("/other/:place/*", mount((request: Request) => new Response(new URL(request.url).pathname)))
  .get("/optional/:name?", (context) => context.text(context.req.param("name") ?? "nobody"));

const Answer = z.object({ hello: z.string() });
const route = createRoute({
  method: "get",
  path: "/hello/{name}",
  request: { params: z.object({ name: z.string() }) },
  responses: { 200: { description: "A greeting", content: { "application/json": { schema: Answer } } } },
});
export const described = new OpenAPIHono().openapi(route, (context) => {
  return context.json({ hello: context.req.valid("param").name }, 200);
});

/** The routes of a dashboard, in one of the apps of `http.apps`. */
export const dashboard = new Hono()
  .use(async (context, next) => {
    await next();
    context.header("x-dashboard", "1");
  })
  .get("/", (context) => context.text("dashboard"))
  .get("/metrics/:name", (context) => context.text(`${context.req.path} ${context.req.header("x-forwarded-prefix")}`))
  .notFound((context) => context.text("no such metric", 404));

/** An app with middleware for browsers, and a page for all paths that do not exist. */
export const answering = new Hono()
  .use(cors({ allowMethods: ["GET"], maxAge: 60 }))
  .get("/hello", (context) => context.text("hello"))
  .notFound((context) => context.json({ status: "not-found" }));
export const guarded = new Hono().use(cors({ origin: ["https://a.example"] })).get("/hello", (context) => context.text(""));
