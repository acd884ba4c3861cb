/**
 * Rows as a program gets them: objects by column name, with the key beside them.
 *
 * A server adds the columns of the primary key to those that were selected, hidden, so that every row carries its key.
 */

export class Shape {
  #shown;
  #key;

  /** `schema` and `key` as the server sends them: columns, and the places of the key among them. */
  constructor(schema, key = []) {
    this.identity = JSON.stringify([schema, key]);
    this.#shown = [...schema.entries()].filter(([, column]) => !column.hidden).map(([at, { name }]) => [name, at]);
    this.#key = key;
    this.columns = this.#shown.map(([name]) => name);
  }

  /** Also safe for a column called `__proto__`. */
  row(values) {
    return Object.fromEntries(this.#shown.map(([name, at]) => [name, values[at]]));
  }

  key(values) {
    return this.#key.map((at) => values[at]);
  }
}
