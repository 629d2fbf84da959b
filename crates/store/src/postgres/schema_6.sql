-- Agents that a client certificate names: each name has a row like a token's, whose hash no secret has.

ALTER TABLE tokens ADD COLUMN certificate TEXT; -- name in the class; NULL for a token with a secret

CREATE UNIQUE INDEX tokens_by_certificate ON tokens (class, certificate) WHERE certificate IS NOT NULL;
