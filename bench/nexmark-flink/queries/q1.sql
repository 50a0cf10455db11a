-- Nexmark q1: currency conversion.
CREATE TABLE answer (auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), date_time TIMESTAMP(3), extra VARCHAR) WITH (${sink});
INSERT INTO answer SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bid;
