SELECT * FROM popularity ORDER BY bids DESC;
SELECT auction, bids, highest, bidders FROM auctions ORDER BY bids DESC, auction LIMIT 5;
SELECT w.auction, w.why, a.bids, a.highest FROM watched w JOIN auctions a ON a.auction = w.auction ORDER BY w.auction;
SELECT * FROM total;
SELECT * FROM watching;
