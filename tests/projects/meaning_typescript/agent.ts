/** The project `meaning` in TypeScript: a store that is searched by how often words come. */

import { Annotation, START, StateGraph, type LangGraphRunnableConfig } from "@langchain/langgraph";

const WORDS = ["tea", "coffee", "rain"];

function vector(text: string) {
  if (text.includes("unreadable")) {
    throw new Error("this cannot be embedded");
  }
  return WORDS.map((word) => text.toLowerCase().split(word).length - 1 + 0.01);
}

export const embed = {
  embedDocuments: async (texts: string[]) => texts.map(vector),
  embedQuery: async (text: string) => vector(text),
};
export const vectors = (texts: string[]) => texts.map(vector);

const State = Annotation.Root({
  note: Annotation<string>,
  question: Annotation<string>,
  found: Annotation<[string, number][]>,
});

async function remember({ note, question }: typeof State.State, { store }: LangGraphRunnableConfig) {
  if (note) {
    await store!.put(["notes"], note, { text: note });
  }
  const items = await store!.search(["notes"], { query: question, limit: 2 });
  return { found: items.map(({ key, score }) => [key, Math.round(score! * 10) / 10] as [string, number]) };
}

export const graph = new StateGraph(State).addNode("remember", remember).addEdge(START, "remember").compile();
