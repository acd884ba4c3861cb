/** Lets node import the console's TypeScript: types are taken off by what the build uses. */

import { register } from "node:module";

register(new URL("./typescript_hooks.js", import.meta.url));
