-- updates
-- Nexmark q17: statistics of each auction and day. Flink's AVG of a BIGINT is one, cut; weir's is a NUMERIC, of which FLOOR makes the same.
CREATE TABLE answer (
  auction BIGINT, bid_day VARCHAR, total_bids BIGINT, rank1_bids BIGINT, rank2_bids BIGINT, rank3_bids BIGINT,
  min_price BIGINT, max_price BIGINT, avg_price BIGINT, sum_price BIGINT
) WITH (${sink});
INSERT INTO answer
SELECT
  auction,
  DATE_FORMAT(date_time, 'yyyy-MM-dd') AS bid_day,
  count(*) AS total_bids,
  count(*) FILTER (WHERE price < 10000) AS rank1_bids,
  count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
  count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
  min(price) AS min_price,
  max(price) AS max_price,
  CAST(FLOOR(avg(price)) AS BIGINT) AS avg_price,
  sum(price) AS sum_price
FROM bid
GROUP BY auction, DATE_FORMAT(date_time, 'yyyy-MM-dd');
