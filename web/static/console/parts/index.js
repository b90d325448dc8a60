// The parts of pages.

export { Page } from "./page.js";
export { Table, Pager, Tabs } from "./table.js";
export { Button, Field, SearchBox, Select, TextField, TextArea, Check } from "./forms.js";
export { Dialog, Confirm, Questions, ask } from "./dialog.js";
export { Ago, Copy, Duration, Empty, ErrorBox, Id, Loading, Pill, Standing } from "./small.js";
export { RunStatus, ThreadStatus } from "./status.js";
export { Code, LongText } from "./code.js";
export { Json } from "./json.js";
export { JsonEditor } from "./json_editor.js";
export { Chart } from "./chart.js";
export { LogView } from "./log_view.js";
export { Toasts, notify } from "./toasts.js";
export { Icon } from "./icons.js";
export { Skeleton } from "./skeleton.js";
