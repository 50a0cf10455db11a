-- Nexmark q2: selection.
CREATE TABLE answer (auction BIGINT, price BIGINT) WITH (${sink});
INSERT INTO answer SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0;
