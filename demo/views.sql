-- A continuous query over the stream, whose result is kept and served.
CREATE MATERIALIZED VIEW auctions AS
SELECT auction, count(*) AS bids, max(price) AS highest, avg(price) AS average, count(DISTINCT bidder) AS bidders
FROM bid
GROUP BY auction;

-- Views over views, and over a stored table: every one always the exact answer of its query.
CREATE MATERIALIZED VIEW popularity AS
SELECT CASE WHEN bids >= 500 THEN 'hot' WHEN bids >= 10 THEN 'warm' ELSE 'cold' END AS popularity,
       count(*) AS auctions, sum(bids) AS bids, max(highest) AS highest
FROM auctions
GROUP BY CASE WHEN bids >= 500 THEN 'hot' WHEN bids >= 10 THEN 'warm' ELSE 'cold' END;

CREATE MATERIALIZED VIEW total AS
SELECT sum(bids) AS bids, count(*) AS auctions FROM auctions;

CREATE MATERIALIZED VIEW watching AS
SELECT count(*) AS watched FROM watched;
