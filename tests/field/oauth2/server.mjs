// oauth2-mock-server on a free port: it prints READY and its address, and then a line for each token that it issues.
// The one client is "fleet"; its secret is the text of the file named by the first argument, read for each request.
import { readFileSync } from "node:fs";
import { OAuth2Server } from "oauth2-mock-server";

const server = new OAuth2Server();
await server.issuer.keys.generate("RS256");

let issued = 0;
server.service.on("beforeTokenSigning", (token) => {
  token.payload.jti = String(++issued); // two tokens of one second differ
});

server.service.on("beforeResponse", (response, request) => {
  const [scheme, value] = (request.headers.authorization ?? "").split(" ");
  const expected = `fleet:${readFileSync(process.argv[2], "utf-8").trim()}`;
  const { client_id: id, client_secret: secret } = request.body;
  const given = scheme === "Basic" ? Buffer.from(value, "base64").toString() : `${id}:${secret}`;
  if (given !== expected) {
    response.statusCode = 401;
    response.body = { error: "invalid_client", error_description: "unknown client or secret" };
    return;
  }
  console.log(`token ${request.body.scope ?? ""}`);
});

await server.start(0, "127.0.0.1");
server.issuer.url = `http://127.0.0.1:${server.address().port}`;
console.log(`READY ${server.issuer.url}`);
process.stdin.on("end", () => process.exit(0)).resume();
