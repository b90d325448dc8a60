/** A refund of an order. A tool looks up the price, and a person approves large amounts. */

import { tool } from "@langchain/core/tools";
import { END, START, StateGraph, interrupt } from "@langchain/langgraph";
import { z } from "zod";

const SMALL_AMOUNT = 20; // paid without approval
const PRICES: Record<string, number> = { "1042": 120, "1043": 15 };

const State = z.object({
  order: z.string().describe("number of an order: 1042 or 1043"),
  amount: z.number().optional(),
  outcome: z.string().optional(),
});
type State = z.infer<typeof State>;

const orderPrice = tool(
  ({ order }) => {
    const price = PRICES[order];
    if (price === undefined) {
      throw new Error(`there is no order ${order}`);
    }
    return price;
  },
  { name: "order_price", description: "Return the price of an order.", schema: State.pick({ order: true }) },
);

const lookUp = async ({ order }: State) => ({ amount: await orderPrice.invoke({ order }) });

/** Ask for approval. LangGraph restarts this node from its first line on resume, so it has no side effects. */
function review({ order, amount = 0 }: State) {
  if (amount > SMALL_AMOUNT) {
    const answer = interrupt({ question: "Pay this refund?", order, amount });
    if (answer?.approve !== true) {
      return { outcome: `declined the refund of order ${order}` };
    }
  }
  return { outcome: `paid ${amount.toFixed(2)} for order ${order}` };
}

export const graph = new StateGraph(State)
  .addNode("look_up", lookUp)
  .addNode("review", review)
  .addEdge(START, "look_up")
  .addEdge("look_up", "review")
  .addEdge("review", END)
  .compile();
