/** The public surface; tablecast.d.ts has its types. */

export { connect, Client } from "./client.js";
export { LiveChanges } from "./changes.js";
export { LiveTable } from "./table.js";
export { TablecastError } from "./errors.js";
