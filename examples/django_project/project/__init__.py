"""The project. On MySQL and MariaDB it takes PyMySQL, which taskserver brings along, in the place of mysqlclient."""

import pymysql

pymysql.install_as_MySQLdb()
