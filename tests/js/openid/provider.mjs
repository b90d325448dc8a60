// An OpenID Connect provider of another project, with one client. OPTIONS is JSON: port, url of the service, secret and
// authentication method of the client, algorithm, claims of every user, and whether ID tokens contain them.

import { generateKeyPairSync } from "node:crypto";
import Provider from "oidc-provider";

const { port, url, secret, method, algorithm, claims, in_id_token } = JSON.parse(process.env.OPTIONS);
const KINDS = { RS256: ["rsa", { modulusLength: 2048 }], PS256: ["rsa", { modulusLength: 2048 }], ES256: ["ec", { namedCurve: "P-256" }], Ed25519: ["ed25519", {}] };
const key = generateKeyPairSync(...KINDS[algorithm]).privateKey.export({ format: "jwk" });

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: "runyard",
      client_secret: secret,
      redirect_uris: [`${url}/v2/sign-in/callback`],
      post_logout_redirect_uris: [`${url}/`],
      token_endpoint_auth_method: method,
      id_token_signed_response_alg: algorithm,
    },
  ],
  jwks: { keys: [{ ...key, use: "sig", alg: algorithm }] },
  enabledJWA: { idTokenSigningAlgValues: ["HS256", "RS256", algorithm] },
  claims: { openid: ["sub"], profile: Object.keys(claims), email: ["email", "email_verified"] },
  conformIdTokenClaims: !in_id_token,
  cookies: { keys: ["of a test"] },
  pkce: { required: () => true },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, email: `${id}@example.com`, email_verified: true, ...claims }) }),
});

process.stdin.resume().on("end", () => process.exit()); // when the test ends: a signal would reach only Node's wrapper
provider.listen(port, "127.0.0.1", () => console.log("ready"));
