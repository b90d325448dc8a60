/** Graphs of `agents.py` in the project `chatroom`. */

import { randomUUID } from "node:crypto";
import { AIMessage, AIMessageChunk, HumanMessage, type BaseMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { END, MessagesAnnotation, START, Send, StateGraph, interrupt, type LangGraphRunnableConfig } from "@langchain/langgraph";
import { ToolNode } from "@langchain/langgraph/prebuilt";
import { z } from "zod";
import { Speaker, answer, released, says, type Chat } from "./chat.js";

// LangGraph for JavaScript draws the inside of a subgraph of at least two nodes.
const listener = new StateGraph(MessagesAnnotation)
  .addNode("answer", answer)
  .addNode("rest", () => ({}))
  .addEdge(START, "answer")
  .addEdge("answer", "rest")
  .compile();

/** A model that calls the tool that a message begins with, once for each further word. Then it reports the results. */
class Planner extends Speaker {
  async *chunks(messages: BaseMessage[]) {
    if (messages.at(-1)?.getType() === "tool") {
      const results = messages.filter((message) => message.getType() === "tool").map(({ content }) => String(content));
      for (const text of ["so: ", ...results]) {
        yield new AIMessageChunk(text);
      }
      return;
    }
    const [name, ...words] = String(messages.at(-1)?.content).split(" ");
    for (const [index, word] of words.entries()) {
      const args = name === "task" ? { description: word, subagent_type: "listener" } : { about: word };
      const call = { name, args: JSON.stringify(args), id: `call-${randomUUID()}`, index, type: "tool_call_chunk" as const };
      yield new AIMessageChunk({ content: "", tool_call_chunks: [call] });
    }
  }
}

const find = tool(
  async function* ({ about }: { about: string }, config: LangGraphRunnableConfig) {
    yield* ["looking ", "for ", about];
    await released(about, config.store);
    if (about === "nothing") {
      throw new Error("nobody knows");
    }
    return `${about} is known`;
  },
  { name: "find", description: "Tell what is known of something.", schema: z.object({ about: z.string() }) },
);

const task = tool(
  async ({ description }) => {
    const heard = await listener.invoke({ messages: [new HumanMessage(description)] });
    return String(heard.messages.at(-1)?.content);
  },
  {
    name: "task",
    description: "Have somebody else listen.",
    schema: z.object({ description: z.string(), subagent_type: z.string() }),
  },
);

const plan = async (state: Chat) => ({ messages: [await new Planner().invoke(state.messages)] });

/** Send each call to a task of its own, as the usual agents do. */
function eachCall(state: Chat) {
  const calls = (state.messages.at(-1) as AIMessage).tool_calls ?? [];
  return calls.length ? calls.map((call) => new Send("tools", { lg_tool_call: { ...call, type: "tool_call" } })) : END;
}

export const helps = new StateGraph(MessagesAnnotation)
  .addNode("plan", plan)
  .addNode("tools", new ToolNode([find, task], { handleToolErrors: true }))
  .addEdge(START, "plan")
  .addConditionalEdges("plan", eachCall, ["tools", END])
  .addEdge("tools", "plan")
  .compile();

/** Runs a subgraph and returns only the number of its messages. */
async function research(state: Chat) {
  const notes = await listener.invoke({ messages: [new HumanMessage(String(state.messages.at(-1)?.content))] });
  return { messages: [new AIMessage(`notes taken: ${notes.messages.length}`)] };
}

export const researches = says("research", research, { subgraphs: [listener] });

function asks(word: string) {
  return () => {
    const decision = interrupt({ question: `${word}?` });
    const text = typeof decision === "string" ? decision : JSON.stringify(decision);
    return { messages: [new AIMessage(`${word}: ${text}`)] };
  };
}

export const asksTwice = new StateGraph(MessagesAnnotation)
  .addNode("ask_first", asks("first"))
  .addNode("ask_second", asks("second"))
  .addEdge(START, "ask_first")
  .addEdge(START, "ask_second")
  .addEdge("ask_first", END)
  .addEdge("ask_second", END)
  .compile();
