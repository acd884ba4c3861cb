/** Who asks: a user with a password, or a token that is given or fetched by the program's own function. */

import { TablecastError } from "./errors.js";
import { toBase64 } from "./values.js";

export class Credentials {
  #user;
  #password;
  #token;

  constructor({ user, password, token }) {
    const hasPassword = typeof user === "string" && typeof password === "string";
    const hasToken = typeof token === "string" || typeof token === "function";
    if (hasPassword === hasToken) {
      throw new TablecastError("invalid_request", "connect takes user and password, or a token (text or a function)");
    }
    this.#user = user;
    this.#password = password;
    this.#token = token;
  }

  /** Whether there may be other ones after these were refused. */
  get canRenew() {
    return typeof this.#token === "function";
  }

  /** The first message of a live connection. `refused`: the ones given out before were not taken. */
  async message(refused) {
    if (this.#token === undefined) return { type: "authenticate", user: this.#user, password: this.#password };
    return { type: "authenticate", token: await this.#current(refused) };
  }

  /** The Authorization header of a request. */
  async header(refused) {
    if (this.#token !== undefined) return `Bearer ${await this.#current(refused)}`;
    return `Basic ${toBase64(new TextEncoder().encode(`${this.#user}:${this.#password}`))}`;
  }

  async #current(refused) {
    if (!this.canRenew) return this.#token;
    const token = await this.#fetched(refused);
    if (typeof token === "string") return token;
    throw new TablecastError("invalid_request", `the function token gave ${typeof token}, and not the text of a token`);
  }

  async #fetched(refused) {
    try {
      return await this.#token(refused);
    } catch (cause) {
      throw new TablecastError("unreachable", `the function token failed: ${cause?.message ?? cause}`, {}, { cause });
    }
  }
}
