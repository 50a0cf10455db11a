-- Parse only: every column is read, and nothing done with it.
CREATE TABLE answer (
  auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR, date_time TIMESTAMP(3), extra VARCHAR
) WITH (${sink});
INSERT INTO answer SELECT auction, bidder, price, channel, url, date_time, extra FROM bid;
