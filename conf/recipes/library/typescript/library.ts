// A consumer of the template library in TypeScript. Its types are made from the API's own description:
//
//   npm install
//   npm run types      # writes schema.d.ts from http://127.0.0.1:8000/openapi.json
//   npm run check
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

export type Result = components["schemas"]["SearchResult"];
export type Difficulty = components["schemas"]["Difficulty"];

export class LibraryError extends Error {
  constructor(readonly status: number, readonly code: string, message: string, readonly hint: string) {
    super(`${message} (${code}). ${hint}`);
  }
}

// fetch that waits for what passes by itself: 503 (the search index is being built) and 429, as Retry-After says.
async function patient(request: Request): Promise<Response> {
  for (let tries = 4; ; tries--) {
    const response = await fetch(request.clone());
    if (![429, 503].includes(response.status) || tries === 0) return response;
    const seconds = Number(response.headers.get("Retry-After") ?? "1");
    await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
  }
}

export function library(baseUrl: string) {
  const client = createClient<paths>({ baseUrl, fetch: patient });
  return {
    async search(query: string, difficulty?: Difficulty): Promise<Result[]> {
      const { data, error, response } = await client.POST("/api/search", {
        body: { query, filters: { difficulty: difficulty ?? null } },
      });
      if (error) throw new LibraryError(response.status, error.code, error.message, error.hint);
      return data.results;
    },

    async template(idOrSlug: string) {
      const { data, error, response } = await client.GET("/api/templates/{idOrSlug}", {
        params: { path: { idOrSlug } },
      });
      if (error) throw new LibraryError(response.status, error.error.code, error.error.message, error.error.hint);
      return data.template;
    },
  };
}
