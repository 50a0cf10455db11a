-- A connector table: one million Nexmark events (people, auctions and bids of an auction site), of which this one reads the bids.
CREATE TABLE bid WITH (connector = 'nexmark', 'table' = 'bid', 'events.num' = '1000000');

-- A stored table: rows that someone writes.
CREATE TABLE watched (auction BIGINT PRIMARY KEY, why TEXT NOT NULL);
INSERT INTO watched VALUES (1000, 'the first'), (1007, 'a lucky number'), (1042, 'the answer');
