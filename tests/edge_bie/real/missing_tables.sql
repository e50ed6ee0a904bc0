-- What baetyl-cloud's database mode needs and its own SQL does not make.
CREATE TABLE baetyl_node (
  id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
  namespace varchar(64) NOT NULL DEFAULT '',
  name varchar(128) NOT NULL DEFAULT '',
  version varchar(36) NOT NULL DEFAULT '',
  core_version varchar(36) NOT NULL DEFAULT '',
  node_mode varchar(36) NOT NULL DEFAULT '',
  description varchar(1024) NOT NULL DEFAULT '',
  labels text NOT NULL,
  annotations text NOT NULL,
  attributes text NOT NULL,
  create_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
  update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  UNIQUE KEY unique_name (namespace, name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8;

CREATE TABLE baetyl_application (
  id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
  namespace varchar(64) NOT NULL DEFAULT '',
  name varchar(128) NOT NULL DEFAULT '',
  version varchar(36) NOT NULL DEFAULT '',
  type varchar(36) NOT NULL DEFAULT '',
  mode varchar(36) NOT NULL DEFAULT '',
  is_system tinyint(1) NOT NULL DEFAULT 0,
  labels text NOT NULL,
  selector varchar(255) NOT NULL DEFAULT '',
  node_selector varchar(255) NOT NULL DEFAULT '',
  description varchar(1024) NOT NULL DEFAULT '',
  services mediumtext NOT NULL,
  init_services mediumtext NOT NULL,
  volumes mediumtext NOT NULL,
  cron_status int NOT NULL DEFAULT 0,
  cron_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
  workload varchar(36) NOT NULL DEFAULT '',
  host_network tinyint(1) NOT NULL DEFAULT 0,
  dns_policy varchar(64) NOT NULL DEFAULT '',
  replica int NOT NULL DEFAULT 0,
  job_config varchar(512) NOT NULL DEFAULT '{}',
  ota varchar(2048) NOT NULL DEFAULT '{}',
  autoScaleCfg varchar(4096) NOT NULL DEFAULT '{}',
  preserve_updates tinyint(1) NOT NULL DEFAULT 0,
  create_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
  update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  UNIQUE KEY unique_name (namespace, name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8;

CREATE TABLE baetyl_configuration (
  id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
  namespace varchar(64) NOT NULL DEFAULT '',
  name varchar(128) NOT NULL DEFAULT '',
  version varchar(36) NOT NULL DEFAULT '',
  is_system tinyint(1) NOT NULL DEFAULT 0,
  labels text NOT NULL,
  data mediumtext NOT NULL,
  description varchar(1024) NOT NULL DEFAULT '',
  create_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
  update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  UNIQUE KEY unique_name (namespace, name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8;

CREATE TABLE baetyl_secret (
  id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
  namespace varchar(64) NOT NULL DEFAULT '',
  name varchar(128) NOT NULL DEFAULT '',
  version varchar(36) NOT NULL DEFAULT '',
  is_system tinyint(1) NOT NULL DEFAULT 0,
  labels text NOT NULL,
  data mediumtext NOT NULL,
  description varchar(1024) NOT NULL DEFAULT '',
  create_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
  update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  UNIQUE KEY unique_name (namespace, name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8;

CREATE TABLE baetyl_namespace (
  id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name varchar(128) NOT NULL DEFAULT '',
  create_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
  update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  UNIQUE KEY unique_name (name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8;
