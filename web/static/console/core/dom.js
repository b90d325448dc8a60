// The rendering library: `html` is htm bound to preact. Modules import hooks and signals from here.

import { h } from "../../vendor/preact.js";
import htm from "../../vendor/htm.js";

/** @typedef {import("../../vendor/preact.js").ComponentChildren} Children */
/** @typedef {import("../../vendor/preact.js").VNode} VNode */

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(h);

export { Fragment, h, render, createContext } from "../../vendor/preact.js";
export {
  useCallback, useContext, useEffect, useErrorBoundary, useId, useLayoutEffect, useMemo, useReducer, useRef, useState,
} from "../../vendor/preact-hooks.js";
export {
  batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect,
} from "../../vendor/signals.js";
