-- updates
CREATE TABLE answer (auction BIGINT, bids BIGINT, highest BIGINT) WITH (${sink});
INSERT INTO answer SELECT auction, count(*), max(price) FROM bid GROUP BY auction;
