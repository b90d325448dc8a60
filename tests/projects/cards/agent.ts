// The graph of agent.py.

import { AIMessage } from "@langchain/core/messages";
import { Annotation, type LangGraphRunnableConfig, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { type UIMessage, typedUi, uiMessageReducer } from "@langchain/langgraph-sdk/react-ui/server";
import type cards from "./ui/cards.js";

const State = Annotation.Root({
  ...MessagesAnnotation.spec,
  ui: Annotation({ reducer: uiMessageReducer, default: (): UIMessage[] => [] }),
});

function forecast(_: typeof State.State, config: LangGraphRunnableConfig) {
  const answer = new AIMessage({ id: "answer", content: "The forecast:" });
  typedUi<typeof cards>(config).push({ name: "weather", props: { city: "Lyon" } }, { message: answer });
  return { messages: [answer] };
}

export const graph = new StateGraph(State).addNode("forecast", forecast).addEdge(START, "forecast").compile();
