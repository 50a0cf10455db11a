-- Nexmark q0: pass through.
CREATE TABLE answer (auction BIGINT, bidder BIGINT, price BIGINT, date_time TIMESTAMP(3), extra VARCHAR) WITH (${sink});
INSERT INTO answer SELECT auction, bidder, price, date_time, extra FROM bid;
