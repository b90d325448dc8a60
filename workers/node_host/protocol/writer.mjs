/** A placeholder of the second view of a run. */
export class ProtocolWriter {
  handlers = new Map();
  close() {}
}
