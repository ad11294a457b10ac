"""Management datagrams as IBTA 1.x lays them out, and rates and sizes as they encode them."""
