"""IP over InfiniBand between network namespaces: interfaces, address resolution, datagrams and connections."""
