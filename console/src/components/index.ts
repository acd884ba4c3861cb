/** What pages are made of. */

export { confirm, Dialog, type Question } from "./confirm.tsx";
export { Grid, type GridColumn, type GridProps } from "./grid.tsx";
export { freshId, Page, Panel } from "./page.tsx";
export { Plot, type Line } from "./plot.tsx";
export { Badge, Bar, Code, copy, Figure, Time, type Tone } from "./small.tsx";
export { Empty, Failure, Live, Loading } from "./states.tsx";
export { toast } from "./toasts.tsx";
