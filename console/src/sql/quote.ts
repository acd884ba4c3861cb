/** Names and texts as they stand in a statement. */

/** A full name (`app.orders`), or the name of a column. Always in quotes: it may be a reserved word. */
export function quotedName(name: string): string {
  return name
    .split(".")
    .map((part) => `"${part.replaceAll('"', '""')}"`)
    .join(".");
}

export function quotedText(text: string): string {
  return `'${text.replaceAll("'", "''")}'`;
}
