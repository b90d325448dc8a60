/** Graphs of `asked.py` in the project `chatroom`. */

import { AIMessage, AIMessageChunk, type BaseMessage } from "@langchain/core/messages";
import { END, START, StateGraph, interrupt, type LangGraphRunnableConfig } from "@langchain/langgraph";
import { z } from "zod";
import { Speaker, pause, says, type Chat } from "./chat.js";

const CALLS = [
  { name: "pay", args: { to: "Ada", amount: 20 } },
  { name: "write", args: { to: "Ada" } },
];

const Order = z
  .object({
    customer: z.string().describe("Who orders it."),
    amount: z.int().min(1).default(1).describe("How many."),
    weight: z.number().nullable().default(null),
    urgent: z.boolean().default(false),
    size: z.enum(["small", "large"]).default("small"),
    colours: z.array(z.string()).default([]),
    address: z.object({ street: z.string(), number: z.int().nullable().default(null) }).nullable().default(null),
    extra: z.record(z.string(), z.any()).default({}),
    steps: z.array(z.string()).default([]),
  })
  .describe("What is ordered.");
type Order = z.infer<typeof Order>;

const Manner = z.object({
  tone: z.enum(["plain", "warm"]).default("plain").describe("How it is said."),
  repeat: z.int().default(1),
  words: z.array(z.string()).optional(),
});

function check(state: Order, config: LangGraphRunnableConfig) {
  config.writer?.({ checked: state.customer });
  return { steps: ["checked"] };
}

function take(state: Order, config: LangGraphRunnableConfig<{ tone?: string }>) {
  const tone = config.context?.tone ?? "plain";
  return { steps: [...state.steps, `${tone}: ${state.amount} ${state.size} for ${state.customer}`] };
}

const adds = (step: string) => (state: Order) => ({ steps: [...state.steps, step] });

const packing = new StateGraph(Order)
  .addNode("fold", adds("folded"))
  .addNode("wrap", adds("wrapped"))
  .addEdge(START, "fold")
  .addEdge("fold", "wrap")
  .addEdge("wrap", END);

export const orders = new StateGraph(Order, Manner)
  .addNode("check", check)
  .addNode("rush", adds("rushed"))
  .addNode("take", take)
  .addNode("pack", packing.compile())
  .addEdge(START, "check")
  .addConditionalEdges("check", (state: Order) => (state.urgent ? "yes" : "no"), { yes: "rush", no: "take" })
  .addEdge("rush", "take")
  .addEdge("take", "pack")
  .addEdge("pack", END)
  .compile();

/** A message with a person's decisions. The keys of objects are sorted. */
function reported(answers: unknown) {
  const inOrder = (_: string, value: unknown) =>
    value && typeof value === "object" && !Array.isArray(value) ? Object.fromEntries(Object.entries(value).sort()) : value;
  return { messages: [new AIMessage(`answered: \`${JSON.stringify(answers, inOrder)}\``)] };
}

function review() {
  const allowed = [["approve", "edit", "reject"], ["approve", "respond"]];
  const action_requests = CALLS.map((call) => ({ ...call, description: `May **${call.name}** run?` }));
  const review_configs = CALLS.map(({ name }, index) => ({ action_name: name, allowed_decisions: allowed[index] }));
  return reported(interrupt({ action_requests, review_configs }).decisions);
}

const reviewEach = () =>
  reported(interrupt({ type: "tool_approval", tool_call_id: "call-1", ...CALLS[0], description: "May it run?" }));

function post() {
  const config = { allow_accept: true, allow_edit: true, allow_respond: true, allow_ignore: true };
  const action_request = { action: "pay", args: CALLS[0].args };
  return reported(interrupt([{ action_request, config, description: "# A letter\n\nMay it go out?" }])[0]);
}

export const reviews = says("review", review);
export const reviewsEach = says("review_each", reviewEach);
export const inbox = says("post", post);

/** A model that streams COUNT words of Markdown for the message `COUNT PER_SECOND`. */
class Fountain extends Speaker {
  async *chunks(messages: BaseMessage[]) {
    const [count, pace] = String(messages.at(-1)?.content).split(" ").map(Number);
    const started = performance.now();
    for (let number = 0; number < count; number++) {
      const late = started + (number / pace) * 1000 - performance.now();
      if (late > 0) {
        await pause(late);
      }
      yield new AIMessageChunk(number % 50 === 49 ? `**${number}**\n\n` : `word${number} `);
    }
    yield new AIMessageChunk("the end");
  }
}

export const pours = says("pour", async (state: Chat) => ({ messages: [await new Fountain().invoke(state.messages)] }));
