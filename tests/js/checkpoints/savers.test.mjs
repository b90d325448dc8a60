// The validation suite of LangGraph for JavaScript, for the saver of the Node host: with the runner's storage, which the
// Python process that starts this file answers for, and with that of temporary threads.

import path from "node:path";
import { pathToFileURL } from "node:url";

import * as documents from "@langchain/core/documents";
import * as messages from "@langchain/core/messages";
import * as langgraph from "@langchain/langgraph";
import * as checkpoint from "@langchain/langgraph-checkpoint";
import { deltaChannelHistoryTests, specTest } from "@langchain/langgraph-checkpoint-validation";

const { NODE_HOST, SOCKET, RUN_ID } = process.env;
const of = (file) => import(/* @vite-ignore */ pathToFileURL(path.join(NODE_HOST, file)).href);
const { storage: currentStorage } = await of("current.mjs");
const { Connection } = await of("connection.mjs");
const { MemoryStorage, Storage } = await of("checkpoints/storage.mjs");
const { RunCheckpoints } = await of("checkpoints/run_checkpoints.mjs");
const { Serializer } = await of("checkpoints/serializer.mjs");
const { makeSaver } = await of("checkpoints/saver.mjs");

const library = { langgraph, checkpoint, messages, documents };
const connection = new Connection(Number(SOCKET), () => {}, { takeSocket() {}, releaseSocket() {} });

class OneStorage extends RunCheckpoints {
  storageOf() {
    return this.storage;
  }
}

/** Create savers whose calls belong to one run. */
function initializer(checkpointerName, Checkpoints, storage) {
  const createCheckpointer = () => {
    const checkpoints = new Checkpoints({
      threadId: "the run's", storage, metadata: {}, serializer: new Serializer(library),
    });
    currentStorage.getStore = () => ({ id: RUN_ID, checkpoints });
    return makeSaver(library, 32 << 20);
  };
  return { checkpointerName, createCheckpointer };
}

for (const each of [
  initializer("stored", OneStorage, new Storage(connection, RUN_ID, "barrier")),
  initializer("temporary", RunCheckpoints, new MemoryStorage()),
]) {
  specTest(each);
  deltaChannelHistoryTests(each);
}
