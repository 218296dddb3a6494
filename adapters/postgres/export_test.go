package postgres

// SharesServer is for tests of poolers that refuse nothing.
var SharesServer = sharesServer
