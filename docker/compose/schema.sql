CREATE DATABASE registry;
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer int NOT NULL,
    total numeric(10, 2) NOT NULL, ordered timestamptz NOT NULL DEFAULT now());
INSERT INTO orders (customer, total) SELECT n % 100, n FROM generate_series(1, 1000) n;
