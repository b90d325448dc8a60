/** The graph of `examples/react`. */

import { AIMessageChunk } from "@langchain/core/messages";
import { interrupt } from "@langchain/langgraph";
import { Speaker, pause, says, type Chat } from "./chat.js";

/** Streams a prepared answer word by word. */
class Slow extends Speaker {
  constructor(readonly answer: string) {
    super();
  }

  async *chunks() {
    for (const word of this.answer.split(/(?<= )/)) {
      await pause(30);
      yield new AIMessageChunk(word);
    }
  }
}

function replyTo(text: string) {
  if (!text.toLowerCase().startsWith("send")) {
    return `You said: "${text}". Write "Send a letter to Ada", and I will ask you before I do it.`;
  }
  const decision = interrupt({ question: `May I do this: ${text}` });
  return decision.approve === true ? "Done, I have sent it." : "All right, I have sent nothing.";
}

export const react = says("answer", async ({ messages }: Chat) => ({
  messages: [await new Slow(replyTo(messages.at(-1)!.text)).invoke(messages)],
}));
