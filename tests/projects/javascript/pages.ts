/** Apps of Hono: with plain routes, and with routes that describe themselves. */

import { OpenAPIHono, createRoute, z } from "@hono/zod-openapi";
import { Hono } from "hono";
import { logger } from "hono/logger";
import { mount } from "hono/mount";

const words = new Hono().get("/:id{[0-9]+}", (context) => context.json({ id: context.req.param("id") }));

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
